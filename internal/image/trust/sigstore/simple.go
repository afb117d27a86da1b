package sigstore

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"

	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"

	"github.com/longshore/longshore/internal/image/trust"
)

// bundleMediaType is the type of bundles whose log entries have a promise and no proof, as the
// entries of cosign's first layout do.
const bundleMediaType = "application/vnd.dev.sigstore.bundle+json;version=0.1"

// bundleOf converts a signature of cosign's first layout to a bundle.
func bundleOf(s trust.Simple) (*bundle.Bundle, error) {
	sig, err := base64.StdEncoding.DecodeString(s.Signature)
	if err != nil || len(sig) == 0 {
		return nil, errors.New("the signature is not base64")
	}
	material := &protobundle.VerificationMaterial{
		Content: &protobundle.VerificationMaterial_PublicKey{PublicKey: &protocommon.PublicKeyIdentifier{}},
	}
	if s.Certificate != "" {
		// Only the leaf certificate is used: the authorities are those of the trusted root.
		block, _ := pem.Decode([]byte(s.Certificate))
		if block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("the certificate is not PEM")
		}
		material.Content = &protobundle.VerificationMaterial_X509CertificateChain{X509CertificateChain: &protocommon.X509CertificateChain{
			Certificates: []*protocommon.X509Certificate{{RawBytes: block.Bytes}},
		}}
	}
	if s.Log != "" {
		e, err := trust.ParseLogEntry(s.Log)
		if err != nil {
			return nil, err
		}
		material.TlogEntries = []*protorekor.TransparencyLogEntry{{
			LogIndex: e.Index, LogId: &protocommon.LogId{KeyId: e.LogID},
			KindVersion: &protorekor.KindVersion{Kind: e.Kind, Version: e.Version}, IntegratedTime: e.IntegratedTime,
			InclusionPromise: &protorekor.InclusionPromise{SignedEntryTimestamp: e.Promise}, CanonicalizedBody: e.Body,
		}}
	}
	if s.Timestamp != "" {
		t, err := trust.ParseTimestamp(s.Timestamp)
		if err != nil {
			return nil, err
		}
		material.TimestampVerificationData = &protobundle.TimestampVerificationData{
			Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: t}},
		}
	}
	sum := sha256.Sum256(s.Payload)
	b, err := bundle.NewBundle(&protobundle.Bundle{
		MediaType: bundleMediaType, VerificationMaterial: material,
		Content: &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
			MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: sum[:]}, Signature: sig,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("read signature: %w", err)
	}
	return b, nil
}
