package cri

import (
	"cmp"
	"path"
	"slices"
	"strings"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
	"github.com/longshore/longshore/internal/ocispec"
)

// document returns the grants of a container's program, and whether its request has any. The
// container's own annotation counts, or that of its pod with the container's name.
func document(req *v1.CreateContainerRequest) (string, bool) {
	if doc, ok := req.GetConfig().GetAnnotations()[core.GrantAnnotation]; ok {
		return doc, true
	}
	doc, ok := req.GetSandboxConfig().GetAnnotations()[core.GrantAnnotation+"/"+req.GetConfig().GetMetadata().GetName()]
	return doc, ok
}

// levels returns the container's levels of Landlock: those of its own annotation, or of its pod's for the container or
// for all of them.
func levels(req *v1.CreateContainerRequest) string {
	pod := req.GetSandboxConfig().GetAnnotations()
	return cmp.Or(req.GetConfig().GetAnnotations()[core.LandlockAnnotation], pod[core.LandlockAnnotation+"/"+req.GetConfig().GetMetadata().GetName()], pod[core.LandlockAnnotation])
}

// holdsOnly reports whether the program holds only its grants: because of its document, of its pod's handler, because
// it is a WebAssembly module, or because its image carries a document. The last two do not count if the pod names
// another runtime.
func (a containerAsk) holdsOnly() bool {
	if _, ok := document(a.req); ok || a.sandbox.Config.Runtime == core.GrantHandler {
		return true
	}
	switch handler := a.pod.GetRuntimeHandler(); {
	case handler == "":
		return a.image.Wasm || a.image.Wish() != ""
	case a.face.ofWasm(handler):
		return a.isModule()
	}
	return false
}

// isModule reports whether the program is a WebAssembly module: its image says so, or its name.
func (a containerAsk) isModule() bool {
	args := a.req.GetConfig().GetCommand()
	if len(args) == 0 {
		args = a.image.Config.Config.Entrypoint
	}
	return a.image.Wasm || len(args) > 0 && strings.HasSuffix(args[0], ".wasm")
}

// ofWasm reports whether a handler's pods have WebAssembly programs beside ordinary ones.
func (c Config) ofWasm(handler string) bool {
	_, configured := c.Handlers[handler]
	return !configured && slices.Contains(core.WasmHandlers(), handler)
}

// granted returns the request's settings for a program that holds only its grants.
func (a containerAsk) granted() ocispec.Granted {
	doc, asked := document(a.req)
	runtime := a.pod.GetRuntimeHandler()
	if a.holdsOnly() {
		runtime = core.GrantHandler
	}
	return ocispec.Granted{
		Document: doc, Asked: asked, Runtime: runtime, Image: &a.image, Identity: identity(a.req, a.sandbox), Secrets: secretMounts(a.req.GetConfig()),
	}
}

// secretMounts returns the container paths at which kubelet mounts volumes of the kinds secret and projected, which it names in the
// paths of its own directory.
func secretMounts(cfg *v1.ContainerConfig) (at []string) {
	for _, m := range cfg.GetMounts() {
		for _, kind := range []string{"/volumes/kubernetes.io~secret/", "/volumes/kubernetes.io~projected/"} {
			if strings.Contains(m.GetHostPath(), kind) {
				at = append(at, path.Clean("/"+m.GetContainerPath()))
			}
		}
	}
	return at
}

// identity returns the program's identity.
func identity(req *v1.CreateContainerRequest, sb *core.Sandbox) core.Identity {
	pod, cfg := convert.SandboxMetadata(sb.Key), req.GetConfig()
	image := cfg.GetImage().GetUserSpecifiedImage() // kubelet names the image by its ID beside it
	if image == "" {
		image = cfg.GetImage().GetImage()
	}
	return core.Identity{
		Namespace: pod.GetNamespace(), Pod: pod.GetName(), PodAttempt: pod.GetAttempt(),
		Container: cfg.GetMetadata().GetName(), ContainerAttempt: cfg.GetMetadata().GetAttempt(), Image: image,
	}
}
