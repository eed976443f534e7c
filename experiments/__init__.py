"""The paper's tables and figures; they use the public names of sees_torch only."""
