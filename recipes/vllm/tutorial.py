"""From vLLM's quickstart, without its model: what is asked of one, and which device it would run on."""

from vllm import SamplingParams
from vllm.platforms import current_platform

params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=16)
device = current_platform.device_type or "none: this machine has no GPU that vLLM knows"
print(f"temperature {params.temperature}, device {device}")
