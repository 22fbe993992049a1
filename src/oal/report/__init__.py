"""Evidence from run folders: statistics, charts, one self-contained page. Reads run folders only, knows no learner."""
