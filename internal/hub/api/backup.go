package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/hub/archive"
)

// GetBackup sends all records. A failure ends the connection: the answer then has no sum.
func (s Server) GetBackup(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := s.Backup(r.Context(), w); err != nil {
		s.Log.WarnContext(r.Context(), "a backup was not finished", "error", err)
		panic(http.ErrAbortHandler)
	}
}

// Backup writes a backup of a running hub to a file, for its owner alone, whole or not at all.
func (c *Client) Backup(ctx context.Context, path string) (archive.Info, error) {
	return BackupTo(path, func(w io.Writer) error {
		r, err := c.do(ctx, http.MethodGet, "/v1/backup", nil)
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }()
		if _, err := io.Copy(w, r); err != nil {
			return fmt.Errorf("the hub's answer ended: %w", err)
		}
		return nil
	})
}

// BackupTo writes the output of fn to a file, for its owner alone, after checking that it is a
// complete backup.
func BackupTo(path string, fn func(w io.Writer) error) (info archive.Info, err error) {
	return info, atomicfile.Fill(path, 0o600, func(f *os.File) error {
		if err := fn(f); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		info, err = archive.Read(f, func(string, []byte) error { return nil })
		return err
	})
}
