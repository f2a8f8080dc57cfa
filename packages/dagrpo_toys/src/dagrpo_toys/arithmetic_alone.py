"""The problems of arithmetic_tool, without the calculator."""

from dagrpo_toys.arithmetic_tool import task

TASK = task("arithmetic_alone")
