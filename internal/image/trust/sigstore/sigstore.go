// Package sigstore verifies signatures on images by given keys or identities and a given trusted
// root, without using the network.
//
// Its libraries are large and cost memory as soon as a program that contains them starts, so no
// part of the agent may import it. It is the whole of longshore-verify, which runs without rights
// and only when there is a signature to verify. Start reading at Main and Verify.
package sigstore

import (
	"bytes"
	"crypto"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/longshore/longshore/internal/image/trust"
)

// signPredicate is the predicate of cosign's statements that sign an image and say nothing more.
// Attestations say other things, and their signers need not have meant that the image may run.
const signPredicate = "https://sigstore.dev/cosign/sign/v1"

// Main answers the question on in and writes the reason to out. It returns the exit status; see
// trust.Question.
func Main(in io.Reader, out io.Writer) int {
	var q trust.Question
	body, err := io.ReadAll(io.LimitReader(in, trust.MaxQuestion+1))
	if err == nil && len(body) > trust.MaxQuestion {
		err = errors.New("the question is too long")
	}
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	var v *verifier
	if err == nil {
		v, err = newVerifier(q)
	}
	if err != nil {
		_, _ = fmt.Fprintln(out, err)
		return 2
	}
	reason, err := v.verify(q.Evidence)
	if err != nil {
		_, _ = fmt.Fprintln(out, err)
		return 1
	}
	_, _ = fmt.Fprintln(out, reason)
	return 0
}

// verifier holds the keys and identities of which one must have signed.
type verifier struct {
	image digest.Digest
	hash  []byte
	ways  []way
}

// way is one key, or all identities together.
type way struct {
	name     string
	verifier *verify.Verifier
	policy   verify.PolicyOption
	more     []verify.PolicyOption
	key      bool
}

// newVerifier parses keys, trusted root and identities.
func newVerifier(q trust.Question) (*verifier, error) {
	if err := q.Digest.Validate(); err != nil || q.Digest.Algorithm() != digest.SHA256 {
		return nil, fmt.Errorf("digest %q: only sha256 is supported", q.Digest)
	}
	v := &verifier{image: q.Digest}
	var err error
	if v.hash, err = hex.DecodeString(q.Digest.Encoded()); err != nil {
		return nil, err
	}
	var trusted *root.TrustedRoot
	if len(q.TrustedRoot) > 0 {
		if trusted, err = root.NewTrustedRootFromJSON(q.TrustedRoot); err != nil {
			return nil, fmt.Errorf("trusted root: %w", err)
		}
	}
	for i, pem := range q.Keys {
		w, err := byKey(pem, trusted)
		if err != nil {
			return nil, fmt.Errorf("key %d: %w", i+1, err)
		}
		v.ways = append(v.ways, w)
	}
	if len(q.Identities) > 0 {
		w, err := byIdentity(q.Identities, trusted)
		if err != nil {
			return nil, err
		}
		v.ways = append(v.ways, w)
	}
	if len(v.ways) == 0 {
		return nil, errors.New("neither keys nor identities were given")
	}
	return v, nil
}

// byKey accepts signatures by a public key, without an end of its validity. With a trusted root
// the signature must be in its log as well.
func byKey(pem []byte, trusted *root.TrustedRoot) (way, error) {
	pub, err := cryptoutils.UnmarshalPEMToPublicKey(pem)
	if err != nil {
		return way{}, err
	}
	sv, err := signature.LoadVerifier(pub, crypto.SHA256)
	if err != nil {
		return way{}, err
	}
	der, err := cryptoutils.MarshalPublicKeyToDER(pub)
	if err != nil {
		return way{}, err
	}
	key := root.NewExpiringKey(sv, time.Time{}, time.Time{})
	material := root.TrustedMaterialCollection{root.NewTrustedPublicKeyMaterial(func(string) (root.TimeConstrainedVerifier, error) {
		return key, nil // whatever name the signature gives to its key
	})}
	options := []verify.VerifierOption{verify.WithNoObserverTimestamps()}
	if trusted != nil {
		material = append(material, trusted)
		options = demands(trusted, false)
	}
	checker, err := verify.NewVerifier(material, options...)
	return way{name: "the key " + digest.FromBytes(der).String(), verifier: checker, policy: verify.WithKey(), key: true}, err
}

// byIdentity accepts certificates from the trusted root's authorities.
func byIdentity(ids []trust.Identity, trusted *root.TrustedRoot) (way, error) {
	if trusted == nil {
		return way{}, errors.New("identities need a trusted root")
	}
	w := way{name: "a certificate"}
	for i, id := range ids {
		o, err := verify.NewShortCertificateIdentity(id.Issuer, whole(id.IssuerRegexp), id.Subject, whole(id.SubjectRegexp))
		if err != nil {
			return w, fmt.Errorf("identity %d: %w", i+1, err)
		}
		if w.policy == nil {
			w.policy = verify.WithCertificateIdentity(o)
		} else {
			w.more = append(w.more, verify.WithCertificateIdentity(o))
		}
	}
	var err error
	w.verifier, err = verify.NewVerifier(trusted, demands(trusted, true)...)
	return w, err
}

// whole makes a regular expression match only a whole text.
func whole(re string) string {
	if re == "" {
		return ""
	}
	return "^(?:" + re + ")$"
}

// demands returns what else a signature must have: all that the trusted root can verify. There is
// no option to require less; a root without a log requires no log entry.
func demands(trusted *root.TrustedRoot, certificate bool) []verify.VerifierOption {
	options := []verify.VerifierOption{verify.WithObserverTimestamps(1)}
	if len(trusted.RekorLogs()) > 0 {
		options = append(options, verify.WithTransparencyLog(1))
	}
	if certificate && len(trusted.CTLogs()) > 0 {
		options = append(options, verify.WithSignedCertificateTimestamps(1))
	}
	return options
}

// verify looks for one valid signature.
func (v *verifier) verify(e trust.Evidence) (string, error) {
	var why []string
	for i, raw := range e.Bundles {
		for _, w := range v.ways {
			reason, err := v.bundle(w, raw)
			if err == nil {
				return reason, nil
			}
			why = append(why, fmt.Sprintf("bundle %d by %s: %v", i+1, w.name, err))
		}
	}
	for i, s := range e.Simple {
		for _, w := range v.ways {
			reason, err := v.simple(w, s)
			if err == nil {
				return reason, nil
			}
			why = append(why, fmt.Sprintf("signature %d by %s: %v", i+1, w.name, err))
		}
	}
	if len(why) == 0 {
		return "", errors.New("there is no signature")
	}
	return "", fmt.Errorf("no signature is valid: %s", strings.Join(why, "; "))
}

// bundle verifies one sigstore bundle on the image itself.
func (v *verifier) bundle(w way, raw []byte) (string, error) {
	var b bundle.Bundle
	if err := b.UnmarshalJSON(raw); err != nil {
		return "", err
	}
	res, err := w.check(&b, verify.WithArtifactDigest("sha256", v.hash))
	if err != nil {
		return "", err
	}
	if s := res.Statement; s != nil && s.GetPredicateType() != signPredicate {
		return "", fmt.Errorf("it is an attestation of %q and not a signature", s.GetPredicateType())
	}
	return w.by(res), nil
}

// simple verifies a signature in cosign's first layout, which signs a text that names the image.
func (v *verifier) simple(w way, s trust.Simple) (string, error) {
	if err := trust.CheckPayload(s.Payload, v.image); err != nil {
		return "", err
	}
	b, err := bundleOf(s)
	if err != nil {
		return "", err
	}
	res, err := w.check(b, verify.WithArtifact(bytes.NewReader(s.Payload)))
	if err != nil {
		return "", err
	}
	return w.by(res), nil
}

func (w way) check(b *bundle.Bundle, artifact verify.ArtifactPolicyOption) (*verify.VerificationResult, error) {
	return w.verifier.Verify(b, verify.NewPolicy(artifact, append([]verify.PolicyOption{w.policy}, w.more...)...))
}

// by returns who signed.
func (w way) by(res *verify.VerificationResult) string {
	if res.Signature == nil || res.Signature.Certificate == nil {
		return w.name
	}
	c := res.Signature.Certificate
	return fmt.Sprintf("%s (%s)", c.SubjectAlternativeName, c.Issuer)
}
