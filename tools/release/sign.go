package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// sign writes FILE.sig beside each file: the signature over its SHA-256, as `cosign verify-blob --key` reads
// it. All signatures are made before the first is written.
func sign(keyFile, password string, files []string) error {
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return err
	}
	key, err := privateKey(text, password)
	if err != nil {
		return fmt.Errorf("%s: %w", keyFile, err)
	}
	signatures := make([][]byte, len(files))
	for i, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		if signatures[i], err = ecdsa.SignASN1(rand.Reader, key, sum[:]); err != nil {
			return fmt.Errorf("sign %s: %w", file, err)
		}
	}
	for i, file := range files {
		if err := os.WriteFile(file+".sig", []byte(base64.StdEncoding.EncodeToString(signatures[i])), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// newKey writes a new key of ECDSA P-256 as `cosign generate-key-pair` does, encrypted with the password, and
// its public key. It overwrites no file.
func newKey(keyFile, publicFile, password string) error {
	if password == "" {
		return errors.New("COSIGN_PASSWORD is empty: set the password that shall protect the key")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	secret, err := encrypted.Encrypt(der, []byte(password))
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return err
	}
	if err := writeNew(keyFile, 0o600, pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: secret})); err != nil {
		return err
	}
	if err := writeNew(publicFile, 0o644, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})); err != nil {
		return errors.Join(err, os.Remove(keyFile)) // without its public key it is of no use
	}
	return nil
}

// writeNew writes a file that does not exist yet.
func writeNew(name string, mode os.FileMode, content []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

// privateKey reads an ECDSA key of the curve P-256 from PEM: as openssl writes it, or as `cosign
// generate-key-pair` does, which encrypts it.
func privateKey(text []byte, password string) (*ecdsa.PrivateKey, error) {
	block, rest := pem.Decode(text)
	for block != nil && block.Type == "EC PARAMETERS" { // openssl ecparam -genkey writes them first
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return nil, errors.New("it has no key in PEM form")
	}
	var key any
	var err error
	switch block.Type {
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY":
		var der []byte
		if der, err = encrypted.Decrypt(block.Bytes, []byte(password)); err != nil {
			return nil, fmt.Errorf("the key cannot be decrypted with COSIGN_PASSWORD: %w", err)
		}
		key, err = x509.ParsePKCS8PrivateKey(der)
	default:
		return nil, fmt.Errorf("a key of the type %q is not supported: use a private key of ECDSA P-256", block.Type)
	}
	if err != nil {
		return nil, err
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("the key is not one of ECDSA P-256, which cosign uses")
	}
	return ec, nil
}
