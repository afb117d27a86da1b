// Package native is the runtime inside the agent. It compiles an OCI spec into a plan (package
// plan): the list of system calls that make the keeper's child the container. It executes no
// program. A field of the spec that it does not support it refuses by name, so that the user can
// choose another runtime.
//
// It must not know the face or the executor of the plan. Start at Compile.
package native
