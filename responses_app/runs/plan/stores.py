"""`Stores`: where a process keeps what its runs read and write, handed around as one."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from responses_app.stores.base import BaseResponseStore
from responses_app.stores.pictures import BasePictureStore
from responses_app.stores.rollouts import BaseRolloutStore
from responses_app.stores.stores import BaseApprovalStore, BaseChatStore, BaseConversations

if TYPE_CHECKING:
    from responses_app.resources.files.store import Files


@dataclass(frozen=True, slots=True)
class Stores:
    """Where responses, what they are as chat completions, conversations, files, pictures and roll-outs are kept."""

    responses: BaseResponseStore
    chats: BaseChatStore
    conversations: BaseConversations
    files: "Files"
    approvals: BaseApprovalStore
    pictures: BasePictureStore
    rollouts: BaseRolloutStore
