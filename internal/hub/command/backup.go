package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/hub/archive"
	"github.com/longshore/longshore/internal/hub/store/etcd"
)

// etcdFlags are those by which an etcd of the user's is named.
func etcdFlags(cmd *cobra.Command, r *etcd.Remote) {
	f := cmd.Flags()
	f.StringSliceVar(&r.Endpoints, "etcd", nil, "members of an etcd of your own, https://HOST:PORT, in place of the one in --dir")
	f.StringVar(&r.Cert, "etcd-cert", "", "file with the hub's certificate for that etcd")
	f.StringVar(&r.Key, "etcd-key", "", "file with its key")
	f.StringVar(&r.CA, "etcd-ca", "", "file with the certificates of that etcd's CA")
	f.StringVar(&r.Prefix, "etcd-prefix", etcd.DefaultPrefix, "prefix of the hub's keys in that etcd, the same for all hubs of a fleet")
}

// named is that etcd, nil when none is.
func named(r *etcd.Remote) (*etcd.Remote, error) {
	switch {
	case len(r.Endpoints) > 0:
		return r, nil
	case r.Cert+r.Key+r.CA != "":
		return nil, errors.New("--etcd must name the members of the etcd for the other flags")
	}
	return nil, nil
}

func (a *app) backup() *cobra.Command {
	var o etcd.Options
	cmd := &cobra.Command{Use: "backup FILE", Short: "Write all records of a hub to a file", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) (err error) {
		var info archive.Info
		if o.Dir != "" {
			info, err = api.BackupTo(args[0], func(w io.Writer) error { return o.Backup(cmd.Context(), w) })
		} else {
			var c *api.Client
			if c, err = a.client(); err != nil {
				return err
			}
			info, err = c.Backup(cmd.Context(), args[0])
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.Stdout, "revision %d of %s\n", info.Revision, info.Made.Format(time.RFC3339))
		return err
	}}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "directory of a stopped hub, instead of the running one")
	return cmd
}

func (a *app) restore() *cobra.Command {
	var o etcd.Options
	var remote etcd.Remote
	cmd := &cobra.Command{Use: "restore FILE --dir DIR", Short: "Restore a backup into a directory or an etcd", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, args []string) (err error) {
		if o.Remote, err = named(&remote); err != nil {
			return err
		}
		if (o.Dir == "") == (o.Remote == nil) {
			return errors.New("--dir must name an empty or new directory, or --etcd an etcd without records of a hub")
		}
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		info, err := o.Restore(cmd.Context(), f)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(a.Stdout, "restored revision %d of %s; the hub needs the same passphrase as before\n", info.Revision, info.Made.Format(time.RFC3339))
		return err
	}}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "directory to create")
	etcdFlags(cmd, &remote)
	return cmd
}
