"""Problems 2.1 to 2.3 under the names by which the assignment's tests import them."""
