// An S3-compatible server over a folder: the gateway of Versity as a library, with its file system backend alone.
//
//	object_storage FOLDER ADDRESS ACCESS SECRET [unconditional]
//
// The last word plants a defect: conditions of puts are ignored, as servers do that do not know them.
// An object and its ETag appear by one link of a finished file, so a kill leaves an object whole or absent; a
// conditional put is decided and published under one lock for each key.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/versity/versitygw/backend"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3response"
)

// Requests and connections at once: more than the drivers, workers and readers of a test open.
const connectionsMax = 512

// Parts of one upload: the limit of S3 itself.
const partsMax = 10_000

// Backend that puts every object, whatever the request's conditions are.
type unconditional struct{ *posix.Posix }

func (b unconditional) PutObject(ctx context.Context, input s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	input.IfNoneMatch, input.IfMatch = nil, nil
	return b.Posix.PutObject(ctx, input)
}

func main() {
	if len(os.Args) != 5 && (len(os.Args) != 6 || os.Args[5] != "unconditional") {
		fail(fmt.Errorf("usage: object_storage FOLDER ADDRESS ACCESS SECRET [unconditional]"))
	}
	folder, address, access, secret := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	if err := (meta.XattrMeta{}).Test(folder); err != nil {
		fail(fmt.Errorf("the file system of %s keeps no extended attributes: %w", folder, err))
	}
	options := posix.PosixOpts{Concurrency: connectionsMax}
	options.SetNewDirPerm(0o700)
	options.SetNewFilePerm(0o600)
	files, err := posix.New(folder, meta.XattrMeta{}, options)
	if err != nil {
		fail(err)
	}
	var served backend.Backend = files
	if len(os.Args) == 6 {
		served = unconditional{files}
	}
	fail(embedgw.RunVersityGW(context.Background(), served, &embedgw.Config{
		RootUserAccess:    access,
		RootUserSecret:    secret,
		Ports:             []string{address},
		MaxConnections:    connectionsMax,
		MaxRequests:       connectionsMax,
		MultipartMaxParts: partsMax,
		HealthPath:        "/healthz",
		KeepAlive:         true,
		Quiet:             true,
	}))
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
