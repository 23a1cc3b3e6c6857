"""For tests, ours and our users': fakes that keep the contracts, and one conformance suite for each port."""
