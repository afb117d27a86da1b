package cri

import (
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/core"
)

// Lists, statuses and figures echo a few fields of each record. Decoding all the
// others, which are most of a config, would be most of what such an answer costs;
// so only those with these numbers are.
const (
	podConfig, podHandler                                                    = 1, 2
	podMetadata, podAnnotations, podLinux                                    = 1, 7, 8
	containerMetadata, containerImage, containerMounts, containerAnnotations = 1, 2, 7, 10
	statusImageID                                                            = 17
)

// field is one field of an encoded message: whole with its tag, and the bytes of
// a message or string.
type field struct {
	number       protowire.Number
	whole, bytes []byte
}

// fields takes a message apart; DataLoss when it is none.
func fields(message []byte) iter.Seq2[field, error] {
	return func(yield func(field, error) bool) {
		for len(message) > 0 {
			number, kind, n := protowire.ConsumeTag(message)
			m := n
			if n >= 0 {
				m = protowire.ConsumeFieldValue(number, kind, message[n:])
			}
			if m < 0 {
				yield(field{}, fmt.Errorf("decode record: %w: %w", protowire.ParseError(m), errdefs.ErrDataLoss))
				return
			}
			f := field{number: number, whole: message[:n+m]}
			if kind == protowire.BytesType {
				f.bytes, _ = protowire.ConsumeBytes(message[n:])
			}
			if !yield(f, nil) {
				return
			}
			message = message[n+m:]
		}
	}
}

// partly decodes those fields of message that have one of the numbers, or all
// where none is given.
func partly(message []byte, into proto.Message, keep ...protowire.Number) error {
	var room [1 << 10]byte
	kept := room[:0]
	for f, err := range fields(message) {
		if err != nil {
			return err
		}
		if len(keep) == 0 || slices.Contains(keep, f.number) {
			kept = append(kept, f.whole...)
		}
	}
	if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(kept, into); err != nil {
		return fmt.Errorf("decode record: %w: %w", err, errdefs.ErrDataLoss)
	}
	return nil
}

// podHead is podOf with only what lists echo, metadata, labels, annotations and
// the handler, and further fields of the config. The labels are the sandbox's own.
func podHead(sb *core.Sandbox, further ...protowire.Number) (podRecord, error) {
	r := podRecord{Config: &v1.RunPodSandboxRequest{Config: &v1.PodSandboxConfig{}}}
	req, _, err := split(sb.Data)
	if err != nil {
		return r, fmt.Errorf("sandbox %s: %w", sb.ID, err)
	}
	for f, err := range fields(req) {
		if err == nil && f.number == podConfig {
			err = partly(f.bytes, r.Config.GetConfig(), append(further, podMetadata, podAnnotations)...)
		}
		if err != nil {
			return r, fmt.Errorf("sandbox %s: %w", sb.ID, err)
		}
		if f.number == podHandler && f.bytes != nil {
			r.Config.RuntimeHandler = string(f.bytes)
		}
	}
	r.Config.Config.Labels = sb.Labels
	return r, nil
}

// containerHead is containerOf with only what lists echo: metadata, labels, which
// are the container's own, annotations and the image.
func containerHead(c *core.Container) (containerRecord, error) {
	return containerPart(c, []protowire.Number{containerMetadata, containerImage, containerAnnotations}, statusImageID)
}

// containerBody is containerHead with what a status echoes beside.
func containerBody(c *core.Container) (containerRecord, error) {
	return containerPart(c, []protowire.Number{containerMetadata, containerImage, containerAnnotations, containerMounts})
}

// containerPart decodes some fields of the config, and some of what was found:
// none is all.
func containerPart(c *core.Container, config []protowire.Number, found ...protowire.Number) (containerRecord, error) {
	r := containerRecord{Config: &v1.ContainerConfig{}, Found: &v1.ContainerStatus{}}
	cfg, was, err := split(c.Data)
	if err == nil {
		err = errors.Join(partly(cfg, r.Config, config...), partly(was, r.Found, found...))
	}
	if err != nil {
		return r, fmt.Errorf("container %s: %w", c.ID, err)
	}
	r.Config.Labels = c.Labels
	return r, nil
}
