"""What is trained: front ends that turn a user's file into a program."""
