"""The messages of a problem with its pictures, each where the text says."""

from dagrpo.chat.formats.pictures import with_pictures


def test_messages_are_cut_where_they_say_that_a_picture_is() -> None:
    image = {"type": "image"}
    assert with_pictures([{"role": "user", "content": "<image><image> Find x.<image>"}]) == [
        {"role": "user", "content": [image, image, {"type": "text", "text": " Find x."}, image]}
    ]


def test_text_alone_stays_text() -> None:
    messages = [{"role": "system", "content": "Look."}, {"role": "user", "content": "Find x."}]
    assert with_pictures(messages) == messages
