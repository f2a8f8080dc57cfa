"""Architectures that an SGLang process imports at its start on a CPU.

SGLANG_EXTERNAL_MODEL_PACKAGE names this package. Without it SGLang imports all of its two hundred model files. Any other
architecture is still found: SGLang then searches its own as usual.
"""
