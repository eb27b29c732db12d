"""`Stores`: where a process keeps what its runs read and write, handed around as one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from responses_app.stores.base import BaseChatStore, BasePictureStore, BaseResponseStore

if TYPE_CHECKING:
    from responses_app.resources.conversations.store import Conversations
    from responses_app.resources.files.store import Files
    from responses_app.resources.rollouts.store import RolloutStore
    from responses_app.stores.approvals import ApprovalStore


@dataclass(frozen=True, slots=True)
class Stores:
    """Where responses, what they are as chat completions, conversations, files, pictures and roll-outs are kept."""

    responses: BaseResponseStore
    chats: BaseChatStore
    conversations: "Conversations"
    files: "Files"
    approvals: "ApprovalStore"
    pictures: BasePictureStore
    rollouts: "RolloutStore"
