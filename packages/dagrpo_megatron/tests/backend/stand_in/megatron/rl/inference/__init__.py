from pydantic import BaseModel


class LLMChatMessage(BaseModel):
    role: str
    content: str
