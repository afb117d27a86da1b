// Package native is the runtime inside the agent. Package compile turns an OCI spec into a plan, the list of system calls
// that make the keeper's child the container. This package sends the plan to the keeper, runs the hooks of containers and
// keeps their records. It executes no program.
//
// It must not know the face or the executor of the plan. Start at Runtime.Create.
package native
