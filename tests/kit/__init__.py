"""What tests share: servers and clients, stand-ins for what is outside, and the laws that answers keep."""
