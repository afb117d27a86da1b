package cri

import (
	"path"
	"strings"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/core"
)

// document returns what a container's program is to be granted, and whether its request says so. The
// container's own annotation counts, or that of its pod with the container's name.
func document(req *v1.CreateContainerRequest) (string, bool) {
	if doc, ok := req.GetConfig().GetAnnotations()[core.GrantAnnotation]; ok {
		return doc, true
	}
	doc, ok := req.GetSandboxConfig().GetAnnotations()[core.GrantAnnotation+"/"+req.GetConfig().GetMetadata().GetName()]
	return doc, ok
}

// holdsOnly reports whether the program holds only what it is granted: because of its document, of its pod's handler, or because its
// image carries a document and the pod names no handler.
func (a containerAsk) holdsOnly() bool {
	_, ok := document(a.req)
	return ok || a.sandbox.Config.Runtime == core.GrantHandler || a.pod.GetRuntimeHandler() == "" && a.image.Wish() != ""
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

// granted adds the document to the annotations of a container's spec.
func granted(annotations map[string]string, req *v1.CreateContainerRequest) map[string]string {
	if doc, ok := document(req); ok {
		annotations[core.GrantAnnotation] = doc
	}
	return annotations
}

// identity is whose program it is.
func identity(req *v1.CreateContainerRequest, sb *core.Sandbox) core.Identity {
	pod, cfg := sandboxMetadata(sb.Key), req.GetConfig()
	image := cfg.GetImage().GetUserSpecifiedImage() // kubelet names the image by its ID beside it
	if image == "" {
		image = cfg.GetImage().GetImage()
	}
	return core.Identity{
		Namespace: pod.GetNamespace(), Pod: pod.GetName(), PodAttempt: pod.GetAttempt(),
		Container: cfg.GetMetadata().GetName(), ContainerAttempt: cfg.GetMetadata().GetAttempt(), Image: image,
	}
}
