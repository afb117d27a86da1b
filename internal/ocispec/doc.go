// Package ocispec builds OCI runtime specs: the parts every container has, image
// and request merged, users looked up, mounts, capabilities, devices, limits.
//
// Everything in it is a function of its arguments, but for ReadNode and
// HostDevice, which look at this machine, and for what is looked up inside an
// os.Root that is handed in. It must not know any face, nor the engine. Start
// reading at New, then node.go, which fits a spec to what this node may give.
package ocispec
