"""What tables show of judged traffic: signatures of packets, payloads, and parts of it."""
