// Package native is the runtime inside the agent: it compiles an OCI spec into
// a plan (package plan), the list of system calls by which the keeper's child
// becomes the container. It executes nothing and is ordinary Go; what it does
// not do it refuses by the spec's field, so that another runtime can be taken.
//
// It must not know who asks or what runs the plan. Start at Compile.
package native
