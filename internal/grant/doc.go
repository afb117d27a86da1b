// Package grant has the grants of a program that holds only its descriptors.
//
// A document is a tree. Its leaves are values, which the program reads as they are, and grants: each becomes a
// descriptor (or, for an environment variable, a value) that the agent opens. Package document reads documents; here
// they are narrowed to an operator's limits (Set), resolved against a request (Resolve), and written for the program
// (Resolved.Argdata). Nothing here opens a file or a socket.
package grant
