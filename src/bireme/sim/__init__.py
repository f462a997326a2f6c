"""Jobs in virtual time: the protocol under random failures, and rounds at scales that no machine here can hold."""
