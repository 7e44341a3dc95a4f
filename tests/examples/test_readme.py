"""README's first script, as it stands there, run as README says."""

import pathlib
import re

import commands
import pytest

README = pathlib.Path(__file__).parents[2] / "README.md"


@pytest.mark.docs
def test_readmes_script_trains_on_a_cluster_as_it_says(tmp_path):
    text = README.read_text()
    command = re.search(r"tf-syncrep (launch .*) train.py\n", text)[1]
    script = tmp_path / "train.py"
    script.write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    result = commands.run(*command.split(), "--no-prefix", str(script))
    assert result.process.returncode == 0, result.output
    losses = [
        float(loss)
        for loss in re.findall(r"200/200 steps.* - loss: (\S+)", result.output)
    ]
    assert len(losses) == 3, result.output
    # An untrained model has 0.69. The result depends on how many gradients come too
    # late.
    assert losses[2] < min(losses[0], 0.45), result.output
    lines = re.findall(
        r"SyncReplicas: (\d+) updates \(.*\) of (\d+) gradients", result.output
    )
    assert len(lines) == 3
    # There are 600 gradients, two for each update; some of three workers' come too
    # late.
    updates, gradients = (sum(map(int, column)) for column in zip(*lines, strict=True))
    assert 150 <= updates <= 300
    assert 2 * updates <= gradients + 1 <= 601
