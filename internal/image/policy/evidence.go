package policy

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Bounds of what is read of an image's signatures: anybody who may write to the
// repository can attach more.
const (
	MaxSignatures     = 32        // of each layout
	MaxSignatureBytes = 256 << 10 // of one
	MaxEvidenceBytes  = 2 << 20   // of all, and its annotations
)

// Claim is what is to be pulled, and what speaks for it.
type Claim struct {
	// Target is what the name stands for: a manifest or an index.
	Target   ocispec.Descriptor `json:"target"`
	Evidence Evidence           `json:"evidence"`
}

// Evidence is an image's signatures, as they were found and yet to be believed.
type Evidence struct {
	// Bundles are sigstore's, as JSON.
	Bundles [][]byte `json:"bundles,omitempty"`
	// Simple are signatures in cosign's first layout.
	Simple []Simple `json:"simple,omitempty"`
	// Skipped counts those beyond the bounds.
	Skipped int `json:"skipped,omitempty"`
}

// Simple is one layer of cosign's signature manifest: what was signed, and its
// annotations.
type Simple struct {
	Payload     []byte `json:"payload"`
	Signature   string `json:"signature"`             // base64
	Certificate string `json:"certificate,omitempty"` // PEM; "" when signed by a key
	Log         string `json:"log,omitempty"`         // Rekor's answer, JSON
	Timestamp   string `json:"timestamp,omitempty"`   // RFC 3161, JSON
}

// Size is about how many bytes s has.
func (s Simple) Size() int {
	return len(s.Payload) + len(s.Signature) + len(s.Certificate) + len(s.Log) + len(s.Timestamp)
}

// Question is what longshore-verify is asked, as JSON on its standard input. It
// exits with 0 when a signature convinces it, with 1 when none does and with 2
// when the question was wrong; on its standard output it says why.
type Question struct {
	Digest      digest.Digest `json:"digest"`
	Evidence    Evidence      `json:"evidence"`
	Keys        [][]byte      `json:"keys,omitempty"` // PEM
	TrustedRoot []byte        `json:"trusted_root,omitempty"`
	Identities  []Identity    `json:"identities,omitempty"`
}

// MaxQuestion bounds a question, in bytes.
const MaxQuestion = 16 << 20

// CheckPayload wants what cosign signed to be a signature on the image with this
// digest: a good signature on something else says nothing. InvalidArgument.
func CheckPayload(payload []byte, image digest.Digest) error {
	var doc struct {
		Critical struct {
			Type  string `json:"type"`
			Image struct {
				Digest string `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
	}
	if err := json.Unmarshal(payload, &doc); err != nil {
		return fmt.Errorf("what was signed is no simple signing payload: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	c := doc.Critical
	if c.Type != "cosign container image signature" {
		return fmt.Errorf("what was signed is %q, not an image: %w", c.Type, errdefs.ErrInvalidArgument)
	}
	if image == "" || c.Image.Digest != image.String() {
		return fmt.Errorf("what was signed is the image %q: %w", c.Image.Digest, errdefs.ErrInvalidArgument)
	}
	return nil
}

// LogEntry is what Rekor answered when a signature was entered.
type LogEntry struct {
	Promise        []byte // the signed entry timestamp
	Body           []byte
	Kind, Version  string
	IntegratedTime int64
	Index          int64
	LogID          []byte
}

// ParseLogEntry reads cosign's annotation. InvalidArgument.
func ParseLogEntry(annotation string) (LogEntry, error) {
	var doc struct {
		Promise []byte `json:"SignedEntryTimestamp"`
		Payload struct {
			Body           string `json:"body"`
			IntegratedTime int64  `json:"integratedTime"`
			Index          int64  `json:"logIndex"`
			LogID          string `json:"logID"`
		} `json:"Payload"`
	}
	bad := func(err error) (LogEntry, error) {
		return LogEntry{}, fmt.Errorf("read log entry: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if err := json.Unmarshal([]byte(annotation), &doc); err != nil {
		return bad(err)
	}
	e := LogEntry{Promise: doc.Promise, IntegratedTime: doc.Payload.IntegratedTime, Index: doc.Payload.Index}
	var err error
	if e.LogID, err = hex.DecodeString(doc.Payload.LogID); err != nil {
		return bad(err)
	}
	if e.Body, err = base64.StdEncoding.DecodeString(doc.Payload.Body); err != nil {
		return bad(err)
	}
	var body struct {
		Kind    string `json:"kind"`
		Version string `json:"apiVersion"`
	}
	if err := json.Unmarshal(e.Body, &body); err != nil {
		return bad(err)
	}
	if e.Kind, e.Version = body.Kind, body.Version; e.Kind == "" || len(e.Promise) == 0 || e.Index < 0 {
		return bad(errors.New("it has no kind, no promise or no index"))
	}
	return e, nil
}

// ParseTimestamp reads cosign's annotation of a time stamp. InvalidArgument.
func ParseTimestamp(annotation string) ([]byte, error) {
	var doc struct {
		Signed []byte `json:"SignedRFC3161Timestamp"`
	}
	if err := json.Unmarshal([]byte(annotation), &doc); err != nil {
		return nil, fmt.Errorf("read time stamp: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if len(doc.Signed) == 0 {
		return nil, fmt.Errorf("read time stamp: it is empty: %w", errdefs.ErrInvalidArgument)
	}
	return doc.Signed, nil
}
