// What to do about an error. The server's message says what is wrong; this says what helps on this page.

const HELP = {
  previous_response_not_found: [
    "What this continues is gone",
    "Begin a new conversation in this lane, or fork from a turn that is stored. Without storing, only the last turn of a lane can be continued.",
  ],
  context_length_exceeded: ["The conversation is too long", "Begin a new one, or fork from an earlier turn."],
  rate_limit_exceeded: ["Too much at once", "Wait a little, then try again."],
  server_is_overloaded: ["The server is busy, or its model still loads", "Try again in a few seconds."],
  model_not_found: ["There is no such model", "Choose another one in the setup."],
  invalid_api_key: ["The key does not open this server", "Sign in with another key."],
  missing_scope: ["The key may not do this", "Sign in with a key that is made for it."],
  websocket_stream_limit_reached: ["Too many lanes on this connection", "Close some lanes, then reload the page."],
  websocket_connection_limit_reached: ["The connection has reached its end", "The page opens a new one: try again."],
  message_too_large: ["The message is too large", "Send less at once."],
  connection_lost: ["The connection closed meanwhile", "What had come is shown. As soon as the page is connected, it looks for what the server has kept of it."],
  not_connected: ["Not connected", "Try again as soon as the page is connected."],
  server_error: ["Something broke in the server", "Try again. The operator finds the reason in the server's log."],
};

/** Return what an error is called, and what helps. */
export function helpFor(error) {
  const [title, help] = HELP[error.code] ?? HELP[error.type] ?? ["The request was refused", ""];
  return { title, help };
}
