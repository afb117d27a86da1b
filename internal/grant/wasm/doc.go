// Package wasm runs a WebAssembly program for WASI preview 1 that holds only its grants.
//
// Its worker is one process per container, in the container's own cgroup and confinement. It gets a Job from descriptor
// 3, and the grants as the descriptors that the job names. To the program everything is a path: a mount is a preopened
// directory, and the first preopen, "/", has argdata.json and fd/N, which opens grant N. A program without a grant gets
// an error of WASI. Start reading at Run.
package wasm
