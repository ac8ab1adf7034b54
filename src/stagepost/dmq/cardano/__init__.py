"""Rules of the conversation between a DMQ node and its cardano-node: queries, answers, time, stake."""
