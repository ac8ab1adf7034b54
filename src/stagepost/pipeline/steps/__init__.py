"""Steps of the pipeline, from data frame to data frame."""
