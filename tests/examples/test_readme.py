"""README's script, as it stands there, run as README says."""

import pathlib
import re

import commands

README = pathlib.Path(__file__).parents[2] / "README.md"


def test_readmes_keras_script_trains_on_a_cluster_as_it_says(tmp_path):
    section = README.read_text().partition("\n## Keras\n")[2]
    command = re.search(r"`tf-syncrep (launch [^`]*) train.py`", section)[1]
    script = tmp_path / "train.py"
    script.write_text(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1])
    result = commands.run(*command.split(), "--no-prefix", str(script))
    assert result.process.returncode == 0, result.output
    lines = re.findall(r"SyncReplicas: (\d+) updates", result.output)
    assert len(lines) == 3
    # 600 gradients, two for each update; some of three workers' come too late.
    updates = int(re.search(r"(?m)^(\d+) updates$", result.output)[1])
    assert sum(map(int, lines)) == updates
    assert 150 <= updates <= 300
