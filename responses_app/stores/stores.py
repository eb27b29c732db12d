"""`Stores`: where a process keeps things, handed around as one."""

from dataclasses import dataclass

from responses_app.stores.approvals import BaseApprovalStore
from responses_app.stores.base import BaseResponseStore
from responses_app.stores.chats import BaseChatStore
from responses_app.stores.conversations import BaseConversationStore
from responses_app.stores.files import BaseFileStore


@dataclass(frozen=True, slots=True)
class Stores:
    """Where responses, what they are as chat completions, conversations and files are kept."""

    responses: BaseResponseStore
    chats: BaseChatStore
    conversations: BaseConversationStore
    files: BaseFileStore
    approvals: BaseApprovalStore
