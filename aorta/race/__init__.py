"""The race reproducer: correct communication with known contents, so that any wrong value is the runtime's fault."""
