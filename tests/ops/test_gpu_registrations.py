"""The registrations of kernels for GPUs, compared with the definitions of their ops.

The test reads the sources, so it needs no GPU, and no build for one.
"""

import pathlib
import re

import pytest

CC = pathlib.Path(__file__).parents[2] / "tf_syncrep" / "cc"


def _sources(folder):
    return [
        p.read_text().replace("\\\n", "\n") for p in sorted(CC.glob(f"{folder}/*.cc"))
    ]


def _expanded(definition, macros):
    """A definition with what its macros stand for."""
    for name, parameters, body in macros:
        call = re.search(rf"{name}\((.*)\)\n", definition)
        if call is None:
            continue
        arguments = re.findall(r'"[^"]+"', call[1])
        for parameter, argument in zip(
            parameters.split(", "), arguments or [""], strict=True
        ):
            body = body.replace(f'" {parameter})', f"{argument[1:]})")
        definition += body
    return definition


def _arguments():
    """The types of each op's inputs and outputs, by their names."""
    ops = {}
    for source in _sources("ops"):
        macros = re.findall(r"#define (\w+)\((.*)\)((?:\n? .*)*)", source)
        for definition in source.split("REGISTER_OP(")[1:]:
            name = definition.split('"')[1]
            definition = _expanded(definition.split(";")[0], macros)
            ops[name] = dict(
                re.findall(r'\.(?:Input|Output)\("(\w+): ([^"]+)"\)', definition)
            )
    return ops


def _host_memory():
    """The arguments that kernels for GPUs have in the host's memory, by op."""
    kernels = {}
    for source in _sources("kernels"):
        for registration in re.findall(
            r"REGISTER_(?:KERNEL_BUILDER|CPU_AND_GPU)\([^;]*", source
        ):
            if "_GPU" in registration:
                name = re.search(r'Name\("([^"]+)"\)', registration)[1]
                kernels[name] = set(re.findall(r'HostMemory\("(\w+)"\)', registration))
    return kernels


@pytest.mark.parametrize(
    ("op", "host_memory"), [pytest.param(*k, id=k[0]) for k in _host_memory().items()]
)
def test_what_the_host_reads_and_writes_is_in_its_memory(op, host_memory):
    # Arguments with several types are data. Kernels read and write the others, handles
    # and numbers, themselves; and sparse gradients, which are summed on the host.
    is_summed_on_host = re.search("Accumulator.*Sparse$", op)
    expected = {
        name
        for name, kind in _arguments()[op].items()
        if is_summed_on_host or (re.fullmatch("[a-z0-9]+", kind) and kind != "dtype")
    }
    assert host_memory == expected


def test_registrations_are_found():
    assert len(_host_memory()) >= 15
