"""Dropbox.

Experimental: written from Dropbox's documentation, untested.
"""

from flows.oauth.provider import PersonProbe, Provider, Revocation

_API = "https://api.dropboxapi.com"

dropbox: Provider = Provider(
    name="dropbox",
    label="Dropbox",
    authorize="https://www.dropbox.com/oauth2/authorize",
    token=f"{_API}/oauth2/token",
    revoke=Revocation(url=f"{_API}/2/auth/token/revoke", kind="bearer"),
    manage="https://www.dropbox.com/account/connected_apps",
    api=f"{_API}/2",
    api_hosts=(_API, "https://content.dropboxapi.com"),
    always=("account_info.read",),
    extra=(("token_access_type", "offline"),),
    switch=(("force_reauthentication", "true"),),
    person=PersonProbe(
        url=f"{_API}/2/users/get_current_account",
        id="account_id",
        label="email",
        name="name.display_name",
        picture="profile_photo_url",
        post="null",
    ),
    scope_words={
        "account_info.read": "See your name and e-mail address",
        "files.metadata.read": "See the names of your files and folders",
        "files.metadata.write": "Change the names and tags of your files and folders",
        "files.content.read": "Download your files",
        "files.content.write": "Upload, change and delete your files",
        "sharing.read": "See what you share and with whom",
        "sharing.write": "Share your files and folders",
        "file_requests.read": "See your requests for files",
    },
    scope_writes=(
        "files.metadata.write",
        "sharing.write",
    ),
    scope_deletes=("files.content.write",),
)
