"""What an image that claims to be of envbuild must carry to be extended."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuild.errors import RequestError
from envbuild.extend.request import ExtendRequest
from envbuild.plan.model import BuildPlan, FilesStep, InlineFile, Layer, layer_key
from envbuild.workflows.extend import extend_image
from envbuild.workflows.settings import Settings
from tests.support.small_images import BASE, small_image


@pytest.mark.redteam
def test_a_plan_of_other_layers_than_the_image_has_is_refused(tmp_path: Path) -> None:
    step = FilesStep(files=(InlineFile(path="/x", content=""),), tools=())
    layer = Layer(name="base", key=layer_key(step, ()), step=step)
    plan = BuildPlan(layers=(layer,), image=("base",), tools=())
    image = small_image(tmp_path, BASE, plan=plan.to_json())
    request = ExtendRequest(image=image, output=tmp_path / "new.sif", environment=["A=b"])
    with pytest.raises(RequestError, match=r"`small\.sif` has other layers than its plan"):
        extend_image(request, Settings.of(store=tmp_path / "store"))
