"""GitLab, at gitlab.com or self-hosted.

Experimental: written from GitLab's documentation; the device flow (17.2 and later) is untested.
"""

from flows.oauth.provider import PersonProbe, Provider, Revocation


def gitlab(
    base: str = "https://gitlab.com", *, name: str = "gitlab", label: str = "GitLab"
) -> Provider:
    """Return the provider for the GitLab at an address.

    Args:
        base: The address of the GitLab.
        name: The name of the provider, and of its settings.
        label: The name that people read.

    Returns:
        The provider.

    Raises:
        InvalidQuestion: The address or the name is not valid.
    """
    base = base.rstrip("/")
    return Provider(
        name=name,
        label=label,
        issuer=base,
        authorize=f"{base}/oauth/authorize",
        token=f"{base}/oauth/token",
        rotates=True,
        revoke=Revocation(url=f"{base}/oauth/revoke"),
        manage=f"{base}/-/user_settings/applications",
        device=f"{base}/oauth/authorize_device",
        api=f"{base}/api/v4",
        client_auth="post",
        always=("read_user",),
        person=PersonProbe(
            url=f"{base}/api/v4/user",
            id="id",
            label="username",
            name="name",
            picture="avatar_url",
        ),
        covers={
            "api": ("read_api", "read_user", "read_repository", "write_repository"),
            "read_api": ("read_user",),
            "write_repository": ("read_repository",),
        },
        scope_words={
            "read_user": "Read your profile",
            "api": "Read and change all that you can, on your behalf",
            "read_api": "Read all that you can",
            "read_repository": "Read your repositories",
            "write_repository": "Read and change your repositories",
            "openid": "Know that it is you",
            "email": "See your e-mail address",
        },
        scope_writes=(
            "api",
            "write_repository",
        ),
    )
