package trust

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

// Limits for reading an image's signatures, because anybody with write access to the repository can
// attach more.
const (
	MaxSignatures     = 32        // of each layout
	MaxSignatureBytes = 256 << 10 // of one
	MaxEvidenceBytes  = 2 << 20   // of all, and its annotations
)

// Claim is an image that is to be pulled, together with its signatures.
type Claim struct {
	// Target is the manifest or index that the name refers to.
	Target   ocispec.Descriptor `json:"target"`
	Evidence Evidence           `json:"evidence"`
}

// Evidence is an image's signatures as they were found, not yet verified.
type Evidence struct {
	// Bundles are sigstore bundles, as JSON.
	Bundles [][]byte `json:"bundles,omitempty"`
	// Simple are signatures in cosign's first layout.
	Simple []Simple `json:"simple,omitempty"`
	// Skipped counts the signatures beyond the limits.
	Skipped int `json:"skipped,omitempty"`
}

// Simple is one layer of cosign's signature manifest: the signed payload and its annotations.
type Simple struct {
	Payload     []byte `json:"payload"`
	Signature   string `json:"signature"`             // base64
	Certificate string `json:"certificate,omitempty"` // PEM; "" when signed by a key
	Log         string `json:"log,omitempty"`         // Rekor's answer, JSON
	Timestamp   string `json:"timestamp,omitempty"`   // RFC 3161, JSON
}

// Size returns the approximate size of s in bytes.
func (s Simple) Size() int {
	return len(s.Payload) + len(s.Signature) + len(s.Certificate) + len(s.Log) + len(s.Timestamp)
}

// Question is the input of longshore-verify, as JSON on its standard input. Its exit status is 0
// when a signature is valid, 1 when none is, and 2 when the question is malformed. The reason is
// on its standard output.
type Question struct {
	Digest      digest.Digest `json:"digest"`
	Evidence    Evidence      `json:"evidence"`
	Keys        [][]byte      `json:"keys,omitempty"` // PEM
	TrustedRoot []byte        `json:"trusted_root,omitempty"`
	Identities  []Identity    `json:"identities,omitempty"`
}

// MaxQuestion bounds a question, in bytes.
const MaxQuestion = 16 << 20

// CheckPayload returns InvalidArgument unless payload, which cosign signed, is a signature on the
// image with this digest: a valid signature on something else proves nothing.
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
		return fmt.Errorf("the signed text is not a simple signing payload: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	c := doc.Critical
	if c.Type != "cosign container image signature" {
		return fmt.Errorf("the signed text is about %q, not an image: %w", c.Type, errdefs.ErrInvalidArgument)
	}
	if image == "" || c.Image.Digest != image.String() {
		return fmt.Errorf("the signed text is about the image %q: %w", c.Image.Digest, errdefs.ErrInvalidArgument)
	}
	return nil
}

// LogEntry is Rekor's record of a signature that was entered in the log.
type LogEntry struct {
	Promise        []byte // the signed entry timestamp
	Body           []byte
	Kind, Version  string
	IntegratedTime int64
	Index          int64
	LogID          []byte
}

// ParseLogEntry parses cosign's annotation of a log entry. InvalidArgument.
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
		return bad(errors.New("it lacks its kind, its promise or its index"))
	}
	return e, nil
}

// ParseTimestamp parses cosign's annotation of a timestamp. InvalidArgument.
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
