"""CPU support for an unmodified SGLang 0.5.23: stubs and a plugin.

Inert unless SGLANG_USE_CPU_ENGINE=1 is set, SGLang's own switch, and the machine has no GPU. It replaces no file of SGLang
and hides no installed package that SGLang uses.

finder.py   offers the stubs to the import system, after every real package
stubs/      sgl_kernel, torchvision: names that can be imported, and refuse to be called, except the hash behind seeded sampling
plugin.py   SGLang's plugin: seeded sampling, LoRA without pinned memory, a start in half the time
models/     the architectures that SGLang need not search for
"""
