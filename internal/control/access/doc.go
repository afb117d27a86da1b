// Package access identifies the callers of the control API, and limits the calls that a socket serves: the read socket serves
// only calls that read, and a policy can limit a node to calls that list and inspect.
package access
