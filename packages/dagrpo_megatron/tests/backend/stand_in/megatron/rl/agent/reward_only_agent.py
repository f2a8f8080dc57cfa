from typing import Any

from pydantic import BaseModel


class Rollout(BaseModel, extra="allow"):
    reward: float
    generation_cap: int | None = None


class RewardOnlyAgent(BaseModel, extra="allow"):
    env_id: str | None = None

    async def _rollout_from_episode(self, request: Any, episode: Any, golden: Any) -> Rollout:
        return Rollout(reward=await self.get_trajectory_reward(episode.responses, episode.conversation, golden))

    async def get_trajectory_reward(self, responses: list[Any], conversation: list[Any], golden: Any) -> float:
        raise NotImplementedError
