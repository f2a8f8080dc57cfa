from argparse import ArgumentParser


def add_inference_args(parser: ArgumentParser) -> ArgumentParser:
    return parser  # options.tsv has them
