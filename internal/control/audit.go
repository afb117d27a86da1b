package control

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/trail"
)

// auditBatch bounds the bytes of lines in a message.
const auditBatch = 256 << 10

// Audit sends the lines of the audit trail.
func (n *nodeServer) Audit(req *longshorev1.AuditRequest, stream grpc.ServerStreamingServer[longshorev1.AuditResponse]) error {
	log := n.srv.o.Audit
	if log == nil {
		return fmt.Errorf("the node keeps no audit trail: audit.enabled is false: %w", errdefs.ErrFailedPrecondition)
	}
	follow := log.Changed()
	since, err := sendLines(log, req.GetSince(), true, stream)
	for err == nil && req.GetFollow() {
		select {
		case <-stream.Context().Done():
			return stream.Context().Err()
		case <-follow:
			follow = log.Changed()
			since, err = sendLines(log, since, false, stream)
		}
	}
	return err
}

// sendLines sends the lines after since, and returns the number of the last one.
func sendLines(log *trail.Log, since uint64, end bool, stream grpc.ServerStreamingServer[longshorev1.AuditResponse]) (uint64, error) {
	r, err := log.Read()
	if err != nil {
		return since, err
	}
	defer func() { _ = r.Close() }()
	batch, size := &longshorev1.AuditResponse{}, 0
	flush := func() error {
		if len(batch.Lines) == 0 {
			return nil
		}
		err := stream.Send(batch)
		batch, size = &longshorev1.AuditResponse{}, 0
		return err
	}
	err = r.Lines(func(line []byte) error {
		var at struct {
			Seq uint64 `json:"seq"`
		}
		if json.Unmarshal(line, &at) == nil { // the client sees lines that are none
			if at.Seq <= since {
				return nil
			}
			since = at.Seq
		}
		batch.Lines = append(batch.Lines, bytes.Clone(line))
		if size += len(line); size > auditBatch {
			return flush()
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	if err == nil && end {
		seq, hash := r.Head()
		err = stream.Send(&longshorev1.AuditResponse{End: &longshorev1.AuditEnd{Seq: seq, Hash: hash}})
	}
	return since, err
}
