package cri

import (
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/core"
)

// document returns what a container's program is granted, when it is to hold nothing else. The
// container's own annotation counts, or that of its pod with the container's name. With the runtime
// handler for such programs, a container without a document is granted nothing.
func document(req *v1.CreateContainerRequest, sb *core.Sandbox) (string, bool) {
	if doc, ok := req.GetConfig().GetAnnotations()[core.GrantAnnotation]; ok {
		return doc, true
	}
	if doc, ok := req.GetSandboxConfig().GetAnnotations()[core.GrantAnnotation+"/"+req.GetConfig().GetMetadata().GetName()]; ok {
		return doc, true
	}
	return "", sb.Config.Runtime == core.GrantHandler
}

// granted adds the document to the annotations of a container's spec.
func granted(annotations map[string]string, req *v1.CreateContainerRequest, sb *core.Sandbox) map[string]string {
	if doc, ok := document(req, sb); ok {
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
