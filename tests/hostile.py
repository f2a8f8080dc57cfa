"""What comes from other people: names that nothing in a folder is called by, any JSON, and how it is refused."""

from collections.abc import Callable

from hypothesis import strategies as st

from dagrpo.core.errors import UserError

NOT_IN_THE_FOLDER: tuple[object, ...] = (
    *(None, 3, True, [], {}, "", ".", ".."),
    *("../x.safetensors", "/x.safetensors", "a/../../b.safetensors", "./x.safetensors", "a//b.safetensors"),
    *("n\0ul.safetensors", "r\u202eight.safetensors", "z\u200bero.safetensors", "\ud800.safetensors"),
    *("a" * 5000 + ".safetensors", "../" * 2000 + "etc/passwd"),
)
names = st.one_of(
    st.sampled_from(NOT_IN_THE_FOLDER),
    st.text(max_size=30),
    st.text("./a\0\\", max_size=12).map(lambda text: f"{text}.safetensors"),
    st.recursive(st.none() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=4),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3),
    max_leaves=6,
)


def refusal(call: Callable[[], object]) -> str:
    """The sentence with which a call is refused; "" when it is accepted."""
    try:
        call()
    except UserError as error:
        return str(error)
    return ""
