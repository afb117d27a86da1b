// Package endings lets containers of every face die in every way that is known, and compares what
// each way to look says about it: the command line, the records and events, and the face's own
// calls. docs/why.md has a line for each.
package endings
