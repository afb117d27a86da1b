// Package compile turns the OCI spec of a container, of an exec or of a hook into a plan (package plan): the list of
// system calls that make a child of the keeper the process. It executes nothing and keeps no state. A field of the spec
// that it does not support it refuses by name, so that the user can choose another runtime.
//
// Container, Exec and Hook compile. ReadHost reads the facts about the node on which a plan depends, MakePoints makes
// the mount points that a plan needs, and FindProgram explains a program that cannot be executed.
//
// It must not know the executor of the plan, the keeper or the records of containers. Start at Container.
package compile
