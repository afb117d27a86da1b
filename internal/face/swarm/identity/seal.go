package identity

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/youmark/pkcs8"

	"github.com/longshore/longshore/internal/passphrase"
)

// The types of keys in PEM.
const (
	plainKey  = "PRIVATE KEY"
	sealedKey = "ENCRYPTED PRIVATE KEY"
)

// sealing is how keys are encrypted: PBES2 of PKCS #5, which openssl reads.
func sealing() *pkcs8.Opts {
	return &pkcs8.Opts{Cipher: pkcs8.AES256CBC, KDFOpts: pkcs8.PBKDF2Opts{SaltSize: 16, IterationCount: 600_000, HMACHash: crypto.SHA256}}
}

// ReadPassphrase reads the passphrase of the node's key, the first line of a file that
// only its owner may read. "" names none. FailedPrecondition when it cannot be used.
func ReadPassphrase(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	return passphrase.Read("the node's key", path)
}

// seal encrypts a key in PEM.
func seal(key string, passphrase []byte) (string, error) {
	block, _ := pem.Decode([]byte(key))
	if block == nil {
		return "", fmt.Errorf("the node's key is damaged: %w", errdefs.ErrDataLoss)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("the node's key is damaged: %w", errdefs.ErrDataLoss)
	}
	der, err := pkcs8.MarshalPrivateKey(parsed, passphrase, sealing())
	if err != nil {
		return "", fmt.Errorf("encrypt the node's key: %w", err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: sealedKey, Bytes: der})), nil
}

// unseal decrypts a key in PEM, if it is encrypted.
func unseal(key string, passphrase []byte) (plain string, sealed bool, err error) {
	block, _ := pem.Decode([]byte(key))
	switch {
	case block == nil || block.Type != sealedKey:
		return key, false, nil
	case len(passphrase) == 0:
		return "", true, fmt.Errorf("the node's key is encrypted: face.swarm.key_passphrase_file must name the file with its passphrase: %w", errdefs.ErrFailedPrecondition)
	}
	parsed, _, err := pkcs8.ParsePrivateKey(block.Bytes, passphrase)
	if err != nil {
		return "", true, fmt.Errorf("the node's key cannot be decrypted: the passphrase is wrong: %w", errdefs.ErrPermissionDenied)
	}
	der, err := x509.MarshalPKCS8PrivateKey(parsed)
	if err != nil {
		return "", true, fmt.Errorf("the node's key is damaged: %w", errdefs.ErrDataLoss)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: plainKey, Bytes: der})), true, nil
}
